-- ARGV: member, token, fence, reason, delay, '1' if a recoverer calls, '1' if the key becomes stuck
local r = held()
if not r then return 0 end
if r.state ~= UNKNOWN and (r.state ~= WORKING or ARGV[6] == '1') then return 0 end
if r.stuck then return 1 end
local due = now + tonumber(ARGV[5])
redis.call('HSET', record, 'state', UNKNOWN, 'reason', ARGV[4], 'due', text(due), 'lease', '0')
if ARGV[7] == '1' then
	redis.call('HSET', record, 'stuck', '1')
	place(stuck, now)
else
	place(unknown, due)
end
return 1
