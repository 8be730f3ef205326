"""A pipeline of a few views over two tables."""

from pathlib import Path

import pytest

from slackwater.api import ViewTest

FILES = {
    "pipeline.toml": """
name = "billing"
source = "erp"
[outputs.revenue]
[outputs.invoices]
[outputs.total]
[outputs.amounts]
[outputs.hidden]
publish = false
""",
    "schema.sql": """
CREATE TABLE public.invoice (
    id bigint PRIMARY KEY,
    customer text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    due date,
    note text,
    clerk text NOT NULL
);
CREATE TABLE public.line (
    invoice bigint NOT NULL, number int NOT NULL, price numeric(10, 2) NOT NULL,
    PRIMARY KEY (invoice, number)
);
ALTER TABLE public.line REPLICA IDENTITY FULL;
CREATE TABLE public.log (text text);
""",
    "views/revenue.sql": """
SELECT TRANSACTIONALLY customer, sum(amount) AS amount, max(due) AS due FROM public.invoice GROUP BY customer
""",
    "views/invoices.sql": """
SELECT TRANSACTIONALLY i.id, i.note, list({'number': l.number, 'price': l.price} ORDER BY l.number) AS lines
FROM public.invoice i JOIN public.line l ON l.invoice = i.id GROUP BY i.id
""",
    "views/total.sql": "SELECT TRANSACTIONALLY count(*) AS invoices FROM public.invoice",
    "views/amounts.sql": "SELECT TRANSACTIONALLY amount FROM public.invoice",
    "views/hidden.sql": "SELECT TRANSACTIONALLY id FROM public.invoice",
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pipeline; tests do not write into it."""
    made = tmp_path_factory.mktemp("pipelines") / "billing"
    for name, text in FILES.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return made


@pytest.fixture(scope="session")
def made(folder: Path) -> ViewTest:
    return ViewTest(folder)


@pytest.fixture
def test(made: ViewTest) -> ViewTest:
    """The views without rows."""
    return made.reset()
