-- ARGV: member, token, lease, grace
local r = load()
local found = false
if r and r.state == WORKING then
	found = r.lease + tonumber(ARGV[4]) <= now
elseif r and r.state == UNKNOWN then
	found = not r.stuck and r.lease <= now and r.due <= now
end
if not found then return {0, text(now), {}, {}} end
local lease = tonumber(ARGV[3])
give(ARGV[2], lease)
redis.call('HSET', record, 'state', UNKNOWN)
redis.call('HINCRBY', record, 'tries', 1)
place(doubted, now + lease)
return answer(1)
