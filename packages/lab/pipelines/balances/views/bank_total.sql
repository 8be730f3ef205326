-- All the money there is: a group without a key.
SELECT TRANSACTIONALLY
    count(*) AS accounts,
    sum(a.balance) AS total
FROM bank.accounts a
