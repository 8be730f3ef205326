-- How many customers bought in the store on days on which they bought neither by catalog nor on the web.
SELECT TRANSACTIONALLY count(*) AS number
FROM (
    (
        SELECT DISTINCT c_last_name, c_first_name, d_date
        FROM store_sales, date_dim, customer
        WHERE ss_sold_date_sk = d_date_sk AND ss_customer_sk = c_customer_sk AND d_month_seq BETWEEN 1202 AND 1213
    )
    EXCEPT
    (
        SELECT DISTINCT c_last_name, c_first_name, d_date
        FROM catalog_sales, date_dim, customer
        WHERE cs_sold_date_sk = d_date_sk AND cs_bill_customer_sk = c_customer_sk AND d_month_seq BETWEEN 1202 AND 1213
    )
    EXCEPT
    (
        SELECT DISTINCT c_last_name, c_first_name, d_date
        FROM web_sales, date_dim, customer
        WHERE ws_sold_date_sk = d_date_sk AND ws_bill_customer_sk = c_customer_sk AND d_month_seq BETWEEN 1202 AND 1213
    )
) AS only_stores;
