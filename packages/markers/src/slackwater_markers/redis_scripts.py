"""What runs inside Redis, so that it happens at once.

LSNs are unsigned 64-bit numbers and Lua's numbers hold 53 bits: they are compared by XADD, or as decimal
text of one length.
"""

PUBLISH = """
local known = redis.call('HMGET', KEYS[2], 'timeline', 'log_id')
if known[2] and ARGV[6] ~= '' and known[2] ~= ARGV[6] then return 0 end
if known[1] and tonumber(known[1]) > tonumber(ARGV[1]) then return 0 end
local added = redis.pcall('XADD', KEYS[1], ARGV[2] .. '-1', 'cut', ARGV[3], 'log', ARGV[4])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'equal or smaller', 1, true) then return 0 end
  return added
end
if ARGV[5] ~= '0' then redis.call('XTRIM', KEYS[1], 'MINID', ARGV[5] .. '-0') end
if ARGV[6] ~= '' then redis.call('HSET', KEYS[2], 'log_id', ARGV[6]) end
redis.call('HSET', KEYS[2], unpack(ARGV, 7))
return 1
"""
"""Keys: cuts, frontier. Arguments: timeline, LSN, cut, log offset, oldest LSN to keep, id of the cut log
(may be empty), then fields of the frontier."""

SET_MARKERS_AHEAD = """
local function is_less(a, b) return #a < #b or (#a == #b and a < b) end
local known = redis.call('HMGET', KEYS[2], 'timeline', 'markers_timeline', 'log_id')
if known[3] and ARGV[2] ~= '' and known[3] ~= ARGV[2] then return 0 end
for i = 1, 2 do
  if known[i] and tonumber(known[i]) > tonumber(ARGV[1]) then return 0 end
end
if known[2] ~= ARGV[1] then
  redis.call('UNLINK', KEYS[1])
  redis.call('HSET', KEYS[2], 'markers_timeline', ARGV[1])
end
if ARGV[2] ~= '' then redis.call('HSET', KEYS[2], 'log_id', ARGV[2]) end
for i = 3, #ARGV, 3 do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  if not old or is_less(string.match(old, '"lsn":(%d+)'), ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  end
end
return 1
"""
"""Keys: markers, frontier. Arguments: timeline, id of the cut log (may be empty), then field, LSN and marker
of each partition."""

FORGET = """
local known = redis.call('HMGET', KEYS[2], 'log_id', 'timeline')
if ARGV[1] ~= '' and (not known[1] or known[1] == ARGV[1]) then return 0 end
for timeline = 0, tonumber(known[2] or 0) do redis.call('UNLINK', ARGV[2] .. timeline) end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return 1
"""
"""Keys: markers, frontier, open. Arguments: id of the cut log whose content stays (empty: nothing stays),
what the keys of cuts begin with. The streams of cuts have the same hash tag as the declared keys, hence the
same slot in a cluster."""
