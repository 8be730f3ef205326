"""What runs inside Redis, so that it happens at once.

LSNs are unsigned 64-bit numbers and Lua's numbers hold 53 bits: they are compared by XADD, or as decimal
text. Nothing that stands in Redis is relied on: a value that is no number is an error that begins with
WRONGVALUE, and no loop is longer because of it.
"""

PUBLISH = """
local known = redis.call('HMGET', KEYS[2], 'timeline', 'log_id')
if known[2] and ARGV[6] ~= '' and known[2] ~= ARGV[6] then return 0 end
local newest = tonumber(known[1] or '0')
if not newest then return redis.error_reply('WRONGVALUE timeline is no number') end
if newest > tonumber(ARGV[1]) then return 0 end
local added = redis.pcall('XADD', KEYS[1], ARGV[2] .. '-1', 'cut', ARGV[3], 'log', ARGV[4])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'equal or smaller', 1, true) then return 0 end
  if string.find(added.err, 'exhausted', 1, true) then return 0 end
  return added
end
if ARGV[5] ~= '0' then redis.call('XTRIM', KEYS[1], 'MINID', ARGV[5] .. '-0') end
if ARGV[6] ~= '' then redis.call('HSET', KEYS[2], 'log_id', ARGV[6]) end
redis.call('HSET', KEYS[2], unpack(ARGV, 7))
return 1
"""
"""Keys: cuts, frontier. Arguments: timeline, LSN, cut, log offset, oldest LSN to keep, id of the cut log
(may be empty), then fields of the frontier."""

SET_MARKERS = """
local function is_less(a, b) return #a < #b or (#a == #b and a < b) end
local known = redis.call('HMGET', KEYS[2], 'timeline', 'lsn', 'log_id')
if known[3] and ARGV[3] ~= '' and known[3] ~= ARGV[3] then return 0 end
local newest, own = tonumber(known[1] or '0'), tonumber(ARGV[1])
if not newest then return redis.error_reply('WRONGVALUE timeline is no number') end
if newest > own or (newest == own and is_less(ARGV[2], known[2] or '0')) then return 0 end
redis.call('UNLINK', KEYS[1])
for first = 4, #ARGV, 4000 do
  redis.call('HSET', KEYS[1], unpack(ARGV, first, math.min(first + 3999, #ARGV)))
end
redis.call('HSET', KEYS[2], 'markers_timeline', ARGV[1])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], 'log_id', ARGV[3]) end
return 1
"""
"""Keys: markers, frontier. Arguments: timeline and LSN of the newest cut, id of the cut log (may be empty),
then field and marker of each partition."""

FORGET = """
local known = redis.pcall('HMGET', KEYS[2], 'log_id', 'timeline')
if known.err then known = {'', '0'} end
if ARGV[1] ~= '' and (not known[1] or known[1] == ARGV[1]) then return 0 end
local newest = tonumber(known[2] or '0')
if not (newest and newest <= 1000) then newest = 1000 end
for timeline = 0, math.max(newest, tonumber(ARGV[3])) do redis.call('UNLINK', ARGV[2] .. timeline) end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return 1
"""
"""Keys: markers, frontier, open. Arguments: id of the cut log whose content stays (empty: nothing stays),
what the keys of cuts begin with, up to which timeline at least. The streams of cuts have the same hash tag as
the declared keys, hence the same slot in a cluster."""
