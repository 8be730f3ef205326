-- Persons and what is theirs: auctions opened, bids made, of everyone who has one of both.
SELECT TRANSACTIONALLY coalesce(s.person, b.person) AS person, s.auctions, b.bids
FROM (SELECT seller AS person, count(*) AS auctions FROM auction GROUP BY seller) AS s
FULL JOIN (SELECT bidder AS person, count(*) AS bids FROM bid GROUP BY bidder) AS b ON b.person = s.person;
