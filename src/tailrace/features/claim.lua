-- Says which entities documents belong to from now on, unless something newer is known of them.
--
-- KEYS     the documents, `prefix:doc:id`
-- ARGV     lifetime in ms (empty for ever), then for each document: version, entity (empty when the document is gone),
--          what was looked at of it
--
-- Gives for each document nothing when the version is older, else the entities it belonged to before. They stay on record,
-- so that the same version asked again, after a crash, gets the same answer.

local lifetime = ARGV[1]

local function names_of(set)
  local names = {}
  for name in pairs(set) do
    names[#names + 1] = name
  end
  return names
end

local function claim(key, version, entity, seen)
  local stored = redis.call('GET', key)
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
  local names = names_of(before)
  local list = #names > 0 and cjson.encode(names) or '[]'
  local text = cjson.encode
  local new = '{"v":' .. text(version) .. ',"e":' .. text(entity) .. ',"b":' .. list .. ',"s":' .. text(seen) .. '}'
  if lifetime ~= '' then
    redis.call('SET', key, new, 'PX', lifetime)
  else
    redis.call('SET', key, new)
  end
  return names
end

local answers = {}
for i, key in ipairs(KEYS) do
  local first = 3 * i - 1
  answers[i] = claim(key, ARGV[first], ARGV[first + 1], ARGV[first + 2])
end
return answers
