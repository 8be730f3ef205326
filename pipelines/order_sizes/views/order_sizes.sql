-- The orders by their number of lines, and their total.
SELECT TRANSACTIONALLY
    t.line_count AS size,
    count(*) AS orders,
    sum(t.total) AS total,
    sum(json_array_length(t.lines)) AS lines,
    list(t.id ORDER BY t.id) AS ids
FROM public.order_totals t
GROUP BY t.line_count
