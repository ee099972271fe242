"""The forms of a claim, one per file; their keys in a spec are those of :class:`pipeline.spec.schema.Claim`."""

from pipeline.report.claims.form import Form
from pipeline.report.claims.forms.better import Better
from pipeline.report.claims.forms.steadier import Steadier
from pipeline.report.claims.forms.within import Within

FORMS: dict[str, type[Form]] = {"better": Better, "steadier": Steadier, "within": Within}
