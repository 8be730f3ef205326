-- Losses by returns of call centers in a month, to people of some kinds.
SELECT TRANSACTIONALLY cc_call_center_id AS center, cc_name AS name, cc_manager AS manager, sum(cr_net_loss) AS loss
FROM call_center
JOIN catalog_returns ON cr_call_center_sk = cc_call_center_sk
JOIN date_dim ON d_date_sk = cr_returned_date_sk
JOIN customer ON c_customer_sk = cr_returning_customer_sk
JOIN customer_demographics ON cd_demo_sk = c_current_cdemo_sk
JOIN household_demographics ON hd_demo_sk = c_current_hdemo_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
WHERE d_year = 2001 AND d_moy = 12
    AND ((cd_marital_status = 'M' AND cd_education_status = 'Unknown') OR (cd_marital_status = 'W' AND cd_education_status = 'College'))
    AND hd_buy_potential LIKE '0-500%' AND ca_gmt_offset = -6
GROUP BY cc_call_center_id, cc_name, cc_manager, cd_marital_status, cd_education_status
ORDER BY sum(cr_net_loss) DESC;
