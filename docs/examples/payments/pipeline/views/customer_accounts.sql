-- One document per customer: the account, what was spent, and what is owed: ordered, and not decided yet.
WITH ordered AS (
    SELECT
        o.customer_id,
        sum(p.amount) FILTER (WHERE p.state = 'booked') AS spent,
        sum(o.amount) FILTER (WHERE p.id IS NULL) AS owed
    FROM shop.orders o
    LEFT JOIN payments.payments p ON p.order_id = o.id
    GROUP BY o.customer_id
)
SELECT TRANSACTIONALLY
    a.id,
    a.opened_with,
    a.balance,
    coalesce(s.spent, 0) AS spent,
    coalesce(s.owed, 0) AS owed
FROM payments.accounts a
LEFT JOIN ordered s ON s.customer_id = a.id
