-- ARGV: member, token, fence
local r, there = held()
if not there then return 1 end
if not r or (r.state ~= WORKING and r.state ~= UNKNOWN) then return 0 end
redis.call('DEL', record, body)
place(nil)
return 1
