-- Auctions without a bid, by NOT IN.
SELECT TRANSACTIONALLY id, item_name, seller
FROM auction
WHERE id NOT IN (SELECT auction FROM bid WHERE price >= 10000);
