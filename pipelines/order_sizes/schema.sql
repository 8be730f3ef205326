-- The view of the pipeline order_totals, as the table that its output has the changes of.

CREATE TABLE public.order_totals (
    id bigint PRIMARY KEY,
    customer text,
    status text,
    line_count bigint,
    total numeric(38, 2),
    lines jsonb
);

-- Its events have the whole row as it was before.
ALTER TABLE public.order_totals REPLICA IDENTITY FULL;
