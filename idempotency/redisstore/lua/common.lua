-- The beginning of every script. All keys are in one bucket, and so in one slot. A script is atomic, and TIME is
-- constant in it.
-- Times are microseconds since 1970 by the server's clock, exact in a double until the year 2255.
local record, body, fences = KEYS[1], KEYS[2], KEYS[3]
local working, unknown, stuck, since = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
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

-- held returns the record if its token and fence are the caller's, and whether there is any record.
local function held()
	local r = load()
	if r and r.token == ARGV[2] and r.fence == ARGV[3] then return r, true end
	return nil, r ~= nil
end

-- place moves an unfinished key to a list and out of the others; nil removes it from all.
local function place(list, score)
	if list then redis.call('ZADD', list, text(score), member) end
	for _, other in ipairs({working, unknown, stuck}) do
		if other ~= list then redis.call('ZREM', other, member) end
	end
	if list ~= working then redis.call('ZREM', since, member) end
end

-- grant makes token the holder. The fence is above those of all keys of the bucket: by the counter after the clock went
-- back, by the clock after a failover that lost the counter.
local function grant(token, lease)
	local fence = math.max(now, tonumber(redis.call('GET', fences) or 0) + 1)
	redis.call('SET', fences, text(fence))
	redis.call('HSET', record, 'token', token, 'fence', text(fence), 'lease', text(now + lease), 'due', '0')
	redis.call('HDEL', record, 'seq', 'writer')
end

-- answer returns a verdict, the time, the record and its body.
local function answer(verdict)
	return {verdict, text(now), redis.call('HGETALL', record), redis.call('HGETALL', body)}
end
