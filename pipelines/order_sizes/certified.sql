-- The view over the tables of the database, with that of the pipeline order_totals in it.
WITH order_totals AS (
    SELECT
        o.id,
        count(l.id) AS line_count,
        coalesce(sum(l.quantity * l.price), 0) AS total
    FROM inventory.orders o
    LEFT JOIN inventory.order_lines l ON l.order_id = o.id
    GROUP BY o.id
)
SELECT
    t.line_count AS size,
    count(*) AS orders,
    sum(t.total) AS total,
    sum(t.line_count) AS lines,
    list(t.id ORDER BY t.id) AS ids
FROM order_totals t
GROUP BY t.line_count
