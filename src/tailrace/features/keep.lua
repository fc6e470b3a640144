-- Keeps the features of some entities. Everything it does is one atomic step.
--
-- KEYS     the entities, `prefix:entity`; all keys of one begin with it
-- ARGV[1]  what holds for all of them: {at, horizon, lifetime, lateness, windows}
-- ARGV[2]  what is computed: {features}
-- ARGV[3]  and on: what to do with each entity: {ops, news}
--
-- A row is what one document contributes: v its version (a token), t its time, n numbers, s texts to tell apart, l values
-- as JSON. Rows enter and leave windows; each window keeps running totals, so that an update costs what it
-- changes and not what the window holds. Versions make every step repeatable: an older or equal one does nothing.

local shared = cjson.decode(ARGV[1])
local features = cjson.decode(ARGV[2])
local windows = {}
for _, window in ipairs(shared.windows) do
  windows[window.name] = window
end

local function exact(number)
  return string.format('%.17g', number)
end

-- Applies what happened to one entity and publishes what its features are then.
local function keep(base, ops, news)
  local rows_key, times_key, gone_key = base .. ':rows', base .. ':times', base .. ':gone'
  local totals_key, features_key = base .. ':totals', base .. ':features'

  if #ops == 0 and redis.call('EXISTS', totals_key) == 0 then
    return {}
  end

  local totals, touched = {}, {}
  local flat = redis.call('HGETALL', totals_key)
  for i = 1, #flat, 2 do
    totals[flat[i]] = tonumber(flat[i + 1])
  end

  local function total(name)
    return totals[name] or 0
  end

  local function set_total(name, number)
    totals[name] = number
    touched[name] = true
  end

  -- Neumaier's sum: what the additions round off is kept beside, so that numbers can leave as exactly as they came.
  local function add(name, number)
    local sum = total(name)
    local new = sum + number
    local lost
    if math.abs(sum) >= math.abs(number) then
      lost = (sum - new) + number
    else
      lost = (number - new) + sum
    end
    set_total(name, new)
    set_total(name .. '~', total(name .. '~') + lost)
  end

  local function order_key(window, field)
    return base .. ':order:' .. window.name .. ':' .. field
  end

  local function values_key(window, field)
    return base .. ':values:' .. window.name .. ':' .. field
  end

  -- One row enters (sign 1) or leaves (-1) a window.
  local function shift(window, id, row, sign)
    local name = window.name
    set_total(name .. '|rows', total(name .. '|rows') + sign)
    for _, field in ipairs(window.sums) do
      local number = row.n[field]
      if number then
        local sum, count = name .. '|sum|' .. field, name .. '|count|' .. field
        set_total(count, total(count) + sign)
        add(sum, sign * number)
        if total(count) == 0 then
          set_total(sum, 0)
          set_total(sum .. '~', 0)
        end
      end
    end
    for _, field in ipairs(window.orders) do
      local number = row.n[field]
      if number and sign > 0 then
        redis.call('ZADD', order_key(window, field), exact(number), id)
      elseif number then
        redis.call('ZREM', order_key(window, field), id)
      end
    end
    for _, field in ipairs(window.distinct) do
      local text = row.s[field]
      if text and redis.call('HINCRBY', values_key(window, field), text, sign) <= 0 then
        redis.call('HDEL', values_key(window, field), text)
      end
    end
  end

  -- All rows with lower < time <= upper enter or leave.
  local function shift_between(window, lower, upper, sign)
    local ids = redis.call('ZRANGEBYSCORE', times_key, '(' .. exact(lower), exact(upper))
    for _, id in ipairs(ids) do
      shift(window, id, cjson.decode(redis.call('HGET', rows_key, id)), sign)
    end
  end

  local function slide(window)
    local lower, upper = window.name .. '|lower', window.name .. '|upper'
    local old_lower, old_upper = totals[lower], totals[upper]
    if old_lower == nil then
      old_lower, old_upper = window.lower, window.upper
    end
    if old_upper <= window.lower or window.upper <= old_lower then
      shift_between(window, old_lower, old_upper, -1)
      shift_between(window, window.lower, window.upper, 1)
    else
      if window.lower > old_lower then
        shift_between(window, old_lower, window.lower, -1)
      elseif window.lower < old_lower then
        shift_between(window, window.lower, old_lower, 1)
      end
      if window.upper < old_upper then
        shift_between(window, window.upper, old_upper, -1)
      elseif window.upper > old_upper then
        shift_between(window, old_upper, window.upper, 1)
      end
    end
    set_total(lower, window.lower)
    set_total(upper, window.upper)
  end

  local function shift_everywhere(id, row, sign)
    for _, window in ipairs(shared.windows) do
      if row.t > window.lower and row.t <= window.upper then
        shift(window, id, row, sign)
      end
    end
  end

  local function apply(id, version, text)
    local stored = redis.call('HGET', rows_key, id)
    local old = stored and cjson.decode(stored)
    if old and old.v >= version then
      return false
    end
    if old and old.t then
      shift_everywhere(id, old, -1)
      redis.call('ZREM', times_key, id)
    end
    local row = text ~= '' and cjson.decode(text)
    if row and not (shared.horizon and row.t <= shared.horizon) then
      redis.call('HSET', rows_key, id, text)
      redis.call('ZADD', times_key, exact(row.t), id)
      redis.call('ZREM', gone_key, id)
      shift_everywhere(id, row, 1)
    else
      -- The version stays for a while, so that a repetition of what came before is known as such.
      redis.call('HSET', rows_key, id, cjson.encode({v = version}))
      redis.call('ZADD', gone_key, exact(shared.at), id)
    end
    return true
  end

  local function forget(key, limit)
    local ids = redis.call('ZRANGEBYSCORE', key, '-inf', exact(limit), 'LIMIT', 0, 1000)
    for _, id in ipairs(ids) do
      redis.call('HDEL', rows_key, id)
      redis.call('ZREM', key, id)
    end
  end

  for _, window in ipairs(shared.windows) do
    slide(window)
  end
  local changed = 0
  for _, op in ipairs(ops) do
    if apply(op[1], op[2], op[3]) then
      changed = changed + 1
    end
  end
  if shared.horizon then
    forget(times_key, shared.horizon)
  end
  forget(gone_key, shared.at - shared.lateness)

  -- What is published.

  local function newest(window)
    local range = {exact(window.upper), '(' .. exact(window.lower), 'WITHSCORES', 'LIMIT', 0, 1}
    return redis.call('ZREVRANGEBYSCORE', times_key, unpack(range))
  end

  local function extreme(command, key)
    return redis.call(command, key, 0, 0, 'WITHSCORES')[2] or ''
  end

  local compute = {
    count = function(_, window) return exact(total(window.name .. '|rows')) end,
    velocity = function(_, window) return exact(total(window.name .. '|rows') * 60000 / window.length) end,
    sum = function(feature, window)
      local sum = window.name .. '|sum|' .. feature.source
      return exact(total(sum) + total(sum .. '~'))
    end,
    mean = function(feature, window)
      local sum, count = window.name .. '|sum|' .. feature.source, total(window.name .. '|count|' .. feature.source)
      return count > 0 and exact((total(sum) + total(sum .. '~')) / count) or ''
    end,
    min = function(feature, window) return extreme('ZRANGE', order_key(window, feature.source)) end,
    max = function(feature, window) return extreme('ZREVRANGE', order_key(window, feature.source)) end,
    distinct = function(feature, window)
      local count = redis.call('HLEN', values_key(window, feature.source))
      if not feature.buckets then
        return exact(count)
      end
      -- Linear counting: how many values it takes to hit so many of the buckets.
      local free = math.max(feature.buckets - count, 1)
      return exact(math.floor(feature.buckets * math.log(feature.buckets / free) + 0.5))
    end,
    last = function(feature, window)
      local found = newest(window)[1]
      return found and cjson.decode(redis.call('HGET', rows_key, found)).l[feature.source] or ''
    end,
    since_last = function(_, window)
      local time = newest(window)[2]
      return time and exact((shared.at - tonumber(time)) / 1000) or ''
    end,
  }

  -- Until when the values stay as they are if nothing comes: the next row to leave or to enter, or midnight.
  local function next_change()
    local soonest
    local function at(time)
      if time and (not soonest or time < soonest) then
        soonest = time
      end
    end
    for _, window in ipairs(shared.windows) do
      local first = redis.call('ZRANGEBYSCORE', times_key, '(' .. exact(window.lower), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      local next = redis.call('ZRANGEBYSCORE', times_key, '(' .. exact(window.upper), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if window.length and first[2] then
        at(tonumber(first[2]) + window.length)
      end
      at(tonumber(next[2]))
      at(window['until'])
    end
    return soonest
  end

  local published = {'computed_at', exact(shared.at), 'valid_until', exact(next_change() or 1e18)}
  for _, feature in ipairs(features) do
    published[#published + 1] = feature.name
    published[#published + 1] = compute[feature.kind](feature, windows[feature.window])
  end
  if changed > 0 and news.position > (redis.call('HGET', features_key, 'position') or '') then
    for _, name in ipairs({'position', 'as_of', 'updated_at', 'freshness_ms'}) do
      published[#published + 1] = name
      published[#published + 1] = news[name]
    end
  end
  redis.call('HSET', features_key, unpack(published))

  local stored = {}
  for name in pairs(touched) do
    stored[#stored + 1] = name
    stored[#stored + 1] = exact(totals[name])
  end
  if #stored > 0 then
    redis.call('HSET', totals_key, unpack(stored))
  end
  if shared.lifetime then
    for _, key in ipairs({rows_key, times_key, gone_key, totals_key, features_key}) do
      redis.call('PEXPIRE', key, shared.lifetime)
    end
    for _, window in ipairs(shared.windows) do
      for _, field in ipairs(window.orders) do
        redis.call('PEXPIRE', order_key(window, field), shared.lifetime)
      end
      for _, field in ipairs(window.distinct) do
        redis.call('PEXPIRE', values_key(window, field), shared.lifetime)
      end
    end
  end
  return #ops == 0 and redis.call('HGETALL', features_key) or changed
end

local answers = {}
for i, base in ipairs(KEYS) do
  local told = cjson.decode(ARGV[i + 2])
  answers[i] = keep(base, told.ops, told.news)
end
return answers
