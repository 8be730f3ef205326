-- Why people of the same kind return web orders at some prices and profits: means by reason.
SELECT TRANSACTIONALLY
    substring(r_reason_desc FROM 1 FOR 20) AS reason, avg(ws_quantity) AS pieces, avg(wr_refunded_cash) AS refunded,
    avg(wr_fee) AS fee
FROM web_sales
JOIN web_returns ON wr_item_sk = ws_item_sk AND wr_order_number = ws_order_number
JOIN web_page ON wp_web_page_sk = ws_web_page_sk
JOIN customer_demographics AS cd1 ON cd1.cd_demo_sk = wr_refunded_cdemo_sk
JOIN customer_demographics AS cd2
    ON cd2.cd_demo_sk = wr_returning_cdemo_sk AND cd2.cd_marital_status = cd1.cd_marital_status
    AND cd2.cd_education_status = cd1.cd_education_status
JOIN customer_address ON ca_address_sk = wr_refunded_addr_sk
JOIN date_dim ON d_date_sk = ws_sold_date_sk
JOIN reason ON r_reason_sk = wr_reason_sk
WHERE d_year = 2001
    AND (
        (cd1.cd_marital_status = 'S' AND cd1.cd_education_status = 'Primary' AND ws_sales_price BETWEEN 100 AND 150)
        OR (cd1.cd_marital_status = 'W' AND cd1.cd_education_status = 'College' AND ws_sales_price BETWEEN 50 AND 100)
        OR (cd1.cd_marital_status = 'D' AND cd1.cd_education_status = 'Secondary' AND ws_sales_price BETWEEN 150 AND 200)
    )
    AND (
        (ca_country = 'United States' AND ca_state IN ('KS', 'OK') AND ws_net_profit BETWEEN 100 AND 200)
        OR (ca_country = 'United States' AND ca_state IN ('DE', 'FL') AND ws_net_profit BETWEEN 150 AND 300)
        OR (ca_country = 'United States' AND ca_state IN ('WA', 'AK') AND ws_net_profit BETWEEN 50 AND 250)
    )
GROUP BY r_reason_desc
ORDER BY substring(r_reason_desc FROM 1 FOR 20), avg(ws_quantity), avg(wr_refunded_cash), avg(wr_fee)
LIMIT 100;
