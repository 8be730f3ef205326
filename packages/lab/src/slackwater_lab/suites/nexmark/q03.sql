-- Local item suggestion: who sells items of a category in some states.
SELECT TRANSACTIONALLY p.name, p.city, p.state, a.id
FROM auction AS a
JOIN person AS p ON p.id = a.seller
WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca');
