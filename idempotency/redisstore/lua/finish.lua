-- ARGV: member, token, fence, state, code, resource, schema, failure, header ('' or JSON), body ('' or '=' and the body),
-- how long the body and the tombstone are kept (negative: for ever)
local r = held()
if not r then return 0 end
if r.state ~= WORKING and r.state ~= UNKNOWN then return 1 end

local header, content, bodyTTL, tombTTL = ARGV[9], ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
redis.call('DEL', body)
local apart = {}
if header ~= '' then table.insert(apart, 'header'); table.insert(apart, header) end
if content ~= '' then table.insert(apart, 'body'); table.insert(apart, string.sub(content, 2)) end
if r.progress then table.insert(apart, 'progress'); table.insert(apart, r.progress) end
if #apart > 0 then redis.call('HSET', body, unpack(apart)) end

redis.call('HSET', record, 'state', ARGV[4], 'code', ARGV[5], 'resource', ARGV[6], 'schema', ARGV[7], 'failure', ARGV[8],
	'at', text(now), 'apart', #apart, 'lease', '0', 'due', '0')
redis.call('HDEL', record, 'input', 'reason', 'progress', 'writer', 'seq', 'stuck')
place(nil)

local function ttl(us) return text(math.ceil(us / 1000)) end
if bodyTTL >= 0 then
	redis.call('HSET', record, 'body', text(now + bodyTTL))
	redis.call('PEXPIRE', body, ttl(bodyTTL))
end
if tombTTL >= 0 then
	redis.call('HSET', record, 'tomb', text(now + tombTTL))
	redis.call('PEXPIRE', record, ttl(tombTTL))
end
return 1
