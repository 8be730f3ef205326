-- Each account beside what its entries say.
SELECT TRANSACTIONALLY
    a.id,
    a.owner,
    a.opening,
    a.balance,
    count(e.id) AS entries,
    coalesce(sum(e.amount), 0) AS moved
FROM bank.accounts a
LEFT JOIN bank.entries e ON e.account_id = a.id
GROUP BY a.id
