-- ARGV: member, token, lease, grace
local token, lease = ARGV[2], tonumber(ARGV[3])
local r = load()
if r and r.state == UNKNOWN and r.token == token and r.lease > now then -- sent again after a lost reply
	redis.call('HSET', record, 'lease', text(now + lease))
	place(unknown, now + lease)
	return answer(1)
end
-- A lease that its holder did not end (it is 0 otherwise) has ended at least for the grace.
local over = r and (r.lease == 0 or r.lease + tonumber(ARGV[4]) <= now)
if not over or r.state ~= WORKING and (r.state ~= UNKNOWN or r.stuck or r.due > now) then return {0, text(now), {}, {}} end
grant(token, lease)
redis.call('HSET', record, 'state', UNKNOWN)
redis.call('HINCRBY', record, 'tries', 1)
place(unknown, now + lease)
return answer(1)
