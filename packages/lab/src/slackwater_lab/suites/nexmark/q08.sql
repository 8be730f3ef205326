-- Monitor new users: who opens an auction in the ten seconds in which they came.
SELECT TRANSACTIONALLY p.id, p.name, p.minute, p.part
FROM (
    SELECT id, name, date_trunc('minute', date_time) AS minute, floor(extract(second FROM date_time) / 10) AS part
    FROM person
) AS p
JOIN (
    SELECT DISTINCT seller, date_trunc('minute', date_time) AS minute, floor(extract(second FROM date_time) / 10) AS part
    FROM auction
) AS a ON a.seller = p.id AND a.minute = p.minute AND a.part = p.part;
