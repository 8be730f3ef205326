-- Customers of a state's stores who return a fifth more than the mean customer of the store.
WITH returned AS (
    SELECT sr_customer_sk AS customer, sr_store_sk AS store, sum(sr_return_amt) AS amount
    FROM store_returns
    JOIN date_dim ON d_date_sk = sr_returned_date_sk
    WHERE d_year = 2001
    GROUP BY sr_customer_sk, sr_store_sk
)
SELECT TRANSACTIONALLY c.c_customer_id
FROM returned AS r
JOIN store AS s ON s.s_store_sk = r.store
JOIN customer AS c ON c.c_customer_sk = r.customer
WHERE s.s_state = 'OH'
    AND r.amount > (SELECT 1.2 * avg(o.amount) FROM returned AS o WHERE o.store = r.store)
ORDER BY c.c_customer_id
LIMIT 5;
