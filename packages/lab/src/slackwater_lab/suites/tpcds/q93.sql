-- What customers really bought where something came back for a reason.
SELECT TRANSACTIONALLY customer, sum(kept) AS sales
FROM (
    SELECT ss_customer_sk AS customer,
        CASE WHEN sr_return_quantity IS NOT NULL THEN (ss_quantity - sr_return_quantity) * ss_sales_price
            ELSE ss_quantity * ss_sales_price END AS kept
    FROM store_sales
    LEFT JOIN store_returns ON sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
    CROSS JOIN reason
    WHERE sr_reason_sk = r_reason_sk AND r_reason_desc = 'Gift exchange'
) AS lines
GROUP BY customer
ORDER BY sales, customer
LIMIT 3;
