-- What every script begins with. All keys are of one bucket, hence of one slot; a script is atomic, and TIME stands still in it.
-- Times are microseconds since 1970 by the server's clock, exact in a double until the year 2255.
local record, body, fences = KEYS[1], KEYS[2], KEYS[3]
local working, doubted, stuck, since = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local member = ARGV[1]

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local WORKING, UNKNOWN = 'IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY'

-- Lua's own conversion would cut a time to 14 digits.
local function text(n) return string.format('%.0f', n) end

-- load returns the record with its times as numbers, nil when there is none or its tombstone is overdue.
local function load()
	local flat = redis.call('HGETALL', record)
	if #flat == 0 then return nil end
	local r = {}
	for i = 1, #flat, 2 do r[flat[i]] = flat[i + 1] end
	r.lease, r.due, r.claimed = tonumber(r.lease), tonumber(r.due), tonumber(r.claimed)
	if r.tomb and tonumber(r.tomb) <= now then
		redis.call('DEL', record, body)
		return nil
	end
	return r
end

-- mine returns the record if the caller holds it: nobody got the key after this token and fence.
local function mine()
	local r = load()
	if r and r.token == ARGV[2] and r.fence == ARGV[3] then return r, true end
	return nil, r ~= nil
end

-- place puts an unfinished key into the one list that its state belongs to; nil takes it out of all.
local function place(list, score)
	if list then redis.call('ZADD', list, text(score), member) end
	for _, other in ipairs({working, doubted, stuck}) do
		if other ~= list then redis.call('ZREM', other, member) end
	end
	if list ~= working then redis.call('ZREM', since, member) end
end

-- give makes token the holder, under a fence above all that any key of this bucket ever got: also when the clock went back,
-- and by the clock when a failover forgot the counter.
local function give(token, lease)
	local fence = math.max(now, tonumber(redis.call('GET', fences) or 0) + 1)
	redis.call('SET', fences, text(fence))
	redis.call('HSET', record, 'token', token, 'fence', text(fence), 'lease', text(now + lease), 'due', '0')
	redis.call('HDEL', record, 'seq', 'writer')
end

-- answer is what the caller is told: a verdict, the time, the record and its body.
local function answer(verdict)
	return {verdict, text(now), redis.call('HGETALL', record), redis.call('HGETALL', body)}
end
