-- Side input: bids with what a table says about them.
SELECT TRANSACTIONALLY b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid AS b
JOIN side_input AS s ON s.key = mod(b.auction, 10000);
