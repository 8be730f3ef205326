-- Profit of stores near zip codes that are listed and have many preferred customers.
SELECT TRANSACTIONALLY s_store_name, sum(ss_net_profit) AS profit
FROM store_sales
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN (
    SELECT substring(ca_zip FROM 1 FOR 5) AS zip
    FROM customer_address
    WHERE substring(ca_zip FROM 1 FOR 5) IN ('10234', '20777', '31456', '45111', '58802', '66120', '79531', '90210')
    INTERSECT
    SELECT zip
    FROM (
        SELECT substring(ca_zip FROM 1 FOR 5) AS zip, count(*) AS preferred
        FROM customer_address
        JOIN customer ON c_current_addr_sk = ca_address_sk
        WHERE c_preferred_cust_flag = 'Y'
        GROUP BY substring(ca_zip FROM 1 FOR 5)
        HAVING count(*) >= 1
    ) AS liked
) AS zips ON substring(s_zip FROM 1 FOR 2) = substring(zips.zip FROM 1 FOR 2)
WHERE d_qoy = 1 AND d_year = 2001
GROUP BY s_store_name
ORDER BY s_store_name
LIMIT 4;
