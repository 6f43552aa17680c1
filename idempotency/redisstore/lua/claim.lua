-- ARGV: member, token, lease, rerun, input ('' or '=' and the input), retention, fingerprint of a new record, older
-- fingerprints...
local token, lease, rerun, input = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5]

local r = load()
if not r then
	grant(token, lease)
	redis.call('HSET', record, 'state', WORKING, 'claimed', text(now), 'keep', ARGV[6], 'print', ARGV[7],
		'tries', '0')
	if input ~= '' then redis.call('HSET', record, 'input', string.sub(input, 2)) end
	place(working, now + lease)
	redis.call('ZADD', since, text(now), member)
	return answer(1)
end

local same = false
for i = 7, #ARGV do same = same or r.print == ARGV[i] end
if not same then return answer(0) end

local function take()
	grant(token, lease)
	redis.call('HSET', record, 'state', WORKING)
	redis.call('HDEL', record, 'stuck')
	place(working, now + lease)
	redis.call('ZADD', since, text(r.claimed), member)
	return answer(1)
end

-- Only local phases have committed and no provider was called, so any caller may continue.
rerun = rerun or r.progress and cjson.decode(r.progress).Stage == 'LOCAL_CREATED'

if r.state == WORKING then
	if r.token == token then
		redis.call('HSET', record, 'lease', text(now + lease))
		place(working, now + lease)
		return answer(1)
	end
	if r.lease > now then return answer(0) end
	if rerun then return take() end
	redis.call('HSET', record, 'state', UNKNOWN) -- the lease stays: recovery's grace counts from its end
	place(unknown, r.lease)
	return answer(0)
end
if r.state == UNKNOWN and rerun and r.lease <= now then return take() end
return answer(0)
