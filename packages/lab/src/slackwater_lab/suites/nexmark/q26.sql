-- The five auctions with the most bids.
SELECT TRANSACTIONALLY a.id, a.item_name, count(*) AS bids
FROM auction AS a
JOIN bid AS b ON b.auction = a.id
GROUP BY a.id, a.item_name
ORDER BY bids DESC, a.id
LIMIT 2;
