-- ARGV: member, token, lease, grace
local token, lease = ARGV[2], tonumber(ARGV[3])
local r = load()
if r and r.state == UNKNOWN and r.token == token and r.lease > now then -- sent again after a lost reply
	redis.call('HSET', record, 'lease', text(now + lease))
	place(unknown, now + lease)
	return answer(1)
end
local found = false
if r and r.state == WORKING then
	found = r.lease + tonumber(ARGV[4]) <= now
elseif r and r.state == UNKNOWN then
	found = not r.stuck and r.lease <= now and r.due <= now
end
if not found then return {0, text(now), {}, {}} end
grant(token, lease)
redis.call('HSET', record, 'state', UNKNOWN)
redis.call('HINCRBY', record, 'tries', 1)
place(unknown, now + lease)
return answer(1)
