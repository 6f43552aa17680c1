-- ARGV: member, token, fence, lease
local r = held()
if not r then return 0 end
local ends = now + tonumber(ARGV[4])
if r.state == WORKING then
	redis.call('HSET', record, 'lease', text(ends))
	place(working, ends)
	return 1
end
if r.state == UNKNOWN and r.lease > now then
	redis.call('HSET', record, 'lease', text(ends))
	place(unknown, ends)
	return 1
end
return 0
