-- ARGV: member, token, fence, progress, writer, seq
-- A save that arrives after a later one of the same writer counts as written and replaced.
local r = held()
if not r or (r.state ~= WORKING and r.state ~= UNKNOWN) or r.lease <= now then return 0 end
if r.writer == ARGV[5] and tonumber(r.seq) > tonumber(ARGV[6]) then return 1 end
redis.call('HSET', record, 'progress', ARGV[4], 'writer', ARGV[5], 'seq', ARGV[6])
return 1
