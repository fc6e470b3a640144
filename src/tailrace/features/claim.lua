-- Says which entity a document belongs to from now on, unless something newer is known of it.
--
-- KEYS[1]  the document, `prefix:doc:id`
-- ARGV     version, entity (empty when the document is gone), what was looked at of it, lifetime in ms (empty for ever)
--
-- Gives nothing when the version is older, else the entities it belonged to before. They stay on record, so that the
-- same version asked again, after a crash, gets the same answer.

local version, entity, seen, lifetime = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stored = redis.call('GET', KEYS[1])
local before = {}
if stored then
  local old = cjson.decode(stored)
  if old.v > version then
    return false
  end
  if old.v == version then
    return old.b
  end
  for _, name in ipairs(old.b) do
    before[name] = true
  end
  before[old.e] = true
end
before[entity] = nil
before[''] = nil
local names = {}
for name in pairs(before) do
  names[#names + 1] = name
end
local list = #names > 0 and cjson.encode(names) or '[]'
local new = '{"v":' .. cjson.encode(version) .. ',"e":' .. cjson.encode(entity) .. ',"b":' .. list .. ',"s":' .. cjson.encode(seen) .. '}'
if lifetime ~= '' then
  redis.call('SET', KEYS[1], new, 'PX', lifetime)
else
  redis.call('SET', KEYS[1], new)
end
return names
