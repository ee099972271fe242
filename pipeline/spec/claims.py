"""A spec's claims, checked against the labels of its table and written out."""

from __future__ import annotations

from pflcore.registry import did_you_mean
from pipeline.spec.grid import Labels, check_where
from pipeline.spec.metrics import OF_ONE_ROUND
from pipeline.spec.parts import Where
from pipeline.spec.schema import COMPARISONS, Claim, TableSection
from pipeline.spec.table import TableClaim
from pipeline.spec.yamlfile import Address, Document, show


def resolve_claims(
    claims: list[Claim], layout: TableSection, labels: Labels, left_out: Labels, document: Document
) -> list[TableClaim]:
    """Return the claims as the report judges them, in which `others` are named.

    Raises:
        UserError: A claim names an axis or a label that does not exist, or compares what cannot be compared.
    """
    resolved = []
    for index, claim in enumerate(claims):
        address: Address = ("claims", index)
        form, side, than = claim.form, claim.side, claim.than or {}
        for key, named in ((form, side), ("than", than), ("where", claim.where)):
            for axis, chosen in named.items():
                if absent := [label for label in chosen if label in left_out.get(axis, [])]:
                    message = f"{show(absent[0])} is left out by grid.only; restate the claims without it"
                    raise document.error((*address, key, axis), message)
        for axis, chosen in than.items():
            known = labels.get(axis, [])
            if chosen == ["others"] and "others" not in known:
                than = {**than, axis: [label for label in known if label not in side.get(axis, [])]}
        if form in COMPARISONS:
            _check_sides(form, side, than, labels, document, address)
        check_where(claim.where, labels, document, (*address, "where"))
        for axis in claim.where:
            if axis in side:
                raise document.error((*address, "where", axis), "this axis is compared; restrict other axes")
        _check_over(claim, labels, document, (*address, "over"))
        if form == "steadier" and not claim.over and layout.metric in OF_ONE_ROUND and not layout.average_over:
            message = f"a single run has no ± under the metric {layout.metric!r}; name axes in `over`"
            raise document.error((*address, form), message)
        resolved.append(
            TableClaim(
                text=claim.text,
                form=form,
                side=side,
                than=than,
                over=claim.over,
                where=claim.where,
                margin=claim.margin if claim.within is None else claim.within,
            )
        )
    return resolved


def _check_sides(form: str, side: Where, than: Where, labels: Labels, document: Document, address: Address) -> None:
    """Check that what is compared is there on both sides, on the same axes."""
    check_where(side, labels, document, (*address, form))
    if not side:
        raise document.error((*address, form), f"names no axis; state which labels are {form}")
    address = (*address, "than")
    check_where(than, labels, document, address)
    if set(than) != set(side):
        raise document.error(address, f"must name the same axes as `{form}`: {', '.join(side)}")
    for axis, chosen in than.items():
        if not chosen:
            raise document.error(address, f"the axis {axis!r} has no other labels")


def _check_over(claim: Claim, labels: Labels, document: Document, address: Address) -> None:
    """Check that means and ranges are over axes of the table that are not compared, and on which something varies."""
    for index, axis in enumerate(claim.over):
        if axis not in labels:
            raise document.error((*address, index), f"unknown axis {axis!r}{did_you_mean(axis, list(labels))}")
        if axis in claim.side:
            raise document.error((*address, index), f"{axis!r} is compared; name other axes")
        if axis in claim.over[:index]:
            raise document.error((*address, index), f"{axis!r} is named twice")
    if claim.over and all(len(claim.where.get(axis, labels[axis])) < 2 for axis in claim.over):
        raise document.error(address, "leaves single cells, which have neither mean nor range")
