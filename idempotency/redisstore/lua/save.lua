-- ARGV: member, token, fence, progress, writer, seq
-- A save that is older than the last one of the same writer was on its way for long, and sent again meanwhile. It is as if it had come in time, and
-- been replaced since.
local r = mine()
if not r or (r.state ~= WORKING and r.state ~= UNKNOWN) or r.lease <= now then return 0 end
if r.writer == ARGV[5] and tonumber(r.seq) > tonumber(ARGV[6]) then return 1 end
redis.call('HSET', record, 'progress', ARGV[4], 'writer', ARGV[5], 'seq', ARGV[6])
return 1
