-- Auctions with at least as many bids as the mean auction.
SELECT TRANSACTIONALLY a.id, a.item_name, count(b.auction) AS bids
FROM auction AS a
JOIN bid AS b ON b.auction = a.id
GROUP BY a.id, a.item_name
HAVING count(b.auction) >= (SELECT count(*) * 1.0 / nullif(count(DISTINCT auction), 0) FROM bid);
