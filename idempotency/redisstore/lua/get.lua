if not load() then return {0, text(now), {}, {}} end
return answer(1)
