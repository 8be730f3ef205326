-- Each machine with its site and what its runs say. Only runs ever change.
SELECT TRANSACTIONALLY
    m.id,
    m.name,
    m.runs,
    m.output,
    count(r.id) AS counted,
    coalesce(sum(r.output), 0) AS summed,
    max(s.place) AS place,
    count(a.id) AS manuals
FROM plant.machines m
LEFT JOIN plant.runs r ON r.machine_id = m.id
LEFT JOIN plant.sites s ON s.machine_id = m.id
LEFT JOIN plant.manuals a ON a.machine_id = m.id
GROUP BY m.id
