-- Highest bids and final prices of auctions, also of those without a bid.
SELECT TRANSACTIONALLY a.id, a.seller, b.most, coalesce(b.most, a.initial_bid) AS price
FROM auction AS a
LEFT JOIN (SELECT auction, max(price) AS most FROM bid GROUP BY auction) AS b ON b.auction = a.id;
