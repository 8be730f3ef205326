-- Selection: bids on some auctions.
SELECT TRANSACTIONALLY auction, price FROM bid WHERE mod(auction, 3) = 0;
