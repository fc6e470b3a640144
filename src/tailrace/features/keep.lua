-- Keeps the features of some entities. Everything it does is one atomic step.
--
-- KEYS     the entities, `prefix:entity`; all keys of one begin with it. In a cluster one entity, and a key of it
-- ARGV[1]  what holds for all of them: {at, horizon, lifetime, lateness, windows}
-- ARGV[2]  what is computed: {features}
-- ARGV[3]  and on: what to do with each entity: {ops, news}
--
-- A row is what one document contributes: v its version (a token), t its time, n numbers, s texts to tell apart, l values
-- as JSON, c the conditions it fulfils. Rows enter and leave windows; each window keeps running totals, so that an update costs what it
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

-- The product of two numbers, and what its rounding lost (Dekker).
local function product(left, right)
  local function halves(number)
    local scaled = 134217729 * number
    local high = scaled - (scaled - number)
    return high, number - high
  end
  local rounded = left * right
  local a, b = halves(left)
  local c, d = halves(right)
  return rounded, ((a * c - rounded) + a * d + b * c) + b * d
end

-- Applies what happened to one entity and publishes what its features are then.
local function keep(base, ops, news)
  local rows_key, times_key, gone_key = base .. ':rows', base .. ':times', base .. ':gone'
  local totals_key, features_key = base .. ':totals', base .. ':features'

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

  -- The times of the rows that fulfil a condition, or of all.
  local function times_of(condition)
    return condition and times_key .. '?' .. condition or times_key
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
    for _, condition in ipairs(row.c or {}) do
      local rows = name .. '|rows?' .. condition
      set_total(rows, total(rows) + sign)
    end
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
    for _, field in ipairs(window.squares) do
      local number = row.n[field]
      if number then
        local squares = name .. '|squares|' .. field
        local high, low = product(number, number)
        add(squares, sign * high)
        add(squares, sign * low)
        if total(name .. '|count|' .. field) == 0 then
          set_total(squares, 0)
          set_total(squares .. '~', 0)
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
      for _, condition in ipairs(old.c or {}) do
        redis.call('ZREM', times_of(condition), id)
      end
    end
    local row = text ~= '' and cjson.decode(text)
    if row and not (shared.horizon and row.t <= shared.horizon) then
      redis.call('HSET', rows_key, id, text)
      redis.call('ZADD', times_key, exact(row.t), id)
      for _, condition in ipairs(row.c or {}) do
        redis.call('ZADD', times_of(condition), exact(row.t), id)
      end
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
    for _, condition in ipairs(shared.conditions) do
      redis.call('ZREMRANGEBYSCORE', times_of(condition), '-inf', exact(shared.horizon))
    end
  end
  forget(gone_key, shared.at - shared.lateness)

  -- What is published.

  local function newest(feature, window, count)
    local range = {exact(window.upper), '(' .. exact(window.lower), 'WITHSCORES', 'LIMIT', 0, count}
    return redis.call('ZREVRANGEBYSCORE', times_of(feature.condition), unpack(range))
  end

  local function rows_in(feature, window)
    return total(window.name .. '|rows' .. (feature.condition and '?' .. feature.condition or ''))
  end

  local function value_of(id, field)
    return cjson.decode(redis.call('HGET', rows_key, id)).l[field]
  end

  local function extreme(command, key)
    return redis.call(command, key, 0, 0, 'WITHSCORES')[2] or ''
  end

  local compute = {
    count = function(feature, window) return exact(rows_in(feature, window)) end,
    velocity = function(feature, window) return exact(rows_in(feature, window) * 60000 / window.length) end,
    sum = function(feature, window)
      local sum = window.name .. '|sum|' .. feature.source
      return exact(total(sum) + total(sum .. '~'))
    end,
    mean = function(feature, window)
      local sum, count = window.name .. '|sum|' .. feature.source, total(window.name .. '|count|' .. feature.source)
      return count > 0 and exact((total(sum) + total(sum .. '~')) / count) or ''
    end,
    stddev = function(feature, window)
      local sum, squares = window.name .. '|sum|' .. feature.source, window.name .. '|squares|' .. feature.source
      local count = total(window.name .. '|count|' .. feature.source)
      if count < 2 then
        return ''
      end
      -- (squares - sum * sum / count) in twice the precision, since both may be far greater than their difference.
      local high, low = total(sum), total(sum .. '~')
      local square, lost = product(high, high)
      lost = lost + 2 * high * low
      local scaled, scaled_lost = product(total(squares), count)
      local difference = (scaled - square) + (scaled_lost - lost + total(squares .. '~') * count)
      return exact(math.sqrt(math.max(difference, 0) / count / (count - 1)))
    end,
    percentile = function(feature, window)
      local flat = redis.call('HGETALL', values_key(window, feature.source))
      local buckets, count = {}, 0
      for i = 1, #flat, 2 do
        local here = tonumber(flat[i + 1])
        buckets[#buckets + 1] = {tonumber(flat[i]), here}
        count = count + here
      end
      table.sort(buckets, function(left, right) return left[1] < right[1] end)
      local rank = math.max(math.ceil(feature.q * count), 1)
      for _, bucket in ipairs(buckets) do
        rank = rank - bucket[2]
        if rank <= 0 then
          local number = bucket[1]
          if number == 0 then
            return '0'
          end
          local size = 2 * feature.gamma ^ (math.abs(number) - feature.one) / (feature.gamma + 1)
          return exact(number > 0 and size or -size)
        end
      end
      return ''
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
      local found = newest(feature, window, feature.n or 1)
      if not feature.n or #found == 0 then
        return found[1] and value_of(found[1], feature.source) or ''
      end
      local values = {}
      for i = 1, #found, 2 do
        values[#values + 1] = value_of(found[i], feature.source) or 'null'
      end
      return '[' .. table.concat(values, ',') .. ']'
    end,
    since_last = function(feature, window)
      local time = newest(feature, window, 1)[2]
      return time and exact((shared.at - tonumber(time)) / 1000) or ''
    end,
  }

  -- An expression over the features before it: numbers, names, and operators that begin with a colon.
  local function evaluate(steps, values)
    local stack, size = {}, 0
    for _, step in ipairs(steps) do
      if type(step) == 'number' then
        size = size + 1
        stack[size] = step
      elseif string.sub(step, 1, 1) ~= ':' then
        size = size + 1
        stack[size] = tonumber(values[step]) or false
      elseif step == ':abs' then
        stack[size] = stack[size] and math.abs(stack[size])
      else
        local left, right = stack[size - 1], stack[size]
        size = size - 1
        if step == ':coalesce' then
          stack[size] = left or right
        elseif not left or not right or (step == ':/' and right == 0) then
          stack[size] = false
        elseif step == ':+' then
          stack[size] = left + right
        elseif step == ':-' then
          stack[size] = left - right
        elseif step == ':*' then
          stack[size] = left * right
        elseif step == ':/' then
          stack[size] = left / right
        elseif step == ':min' then
          stack[size] = math.min(left, right)
        else
          stack[size] = math.max(left, right)
        end
      end
    end
    return stack[1] and exact(stack[1]) or ''
  end

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
  local values = {}
  for _, feature in ipairs(features) do
    local value = feature.steps and evaluate(feature.steps, values)
      or compute[feature.kind](feature, windows[feature.window])
    values[feature.name] = value == '' and feature.default or value
    published[#published + 1] = feature.name
    published[#published + 1] = values[feature.name]
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
    for _, condition in ipairs(shared.conditions) do
      redis.call('PEXPIRE', times_of(condition), shared.lifetime)
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
  return changed
end

local answers = {}
for i = 1, #ARGV - 2 do
  local told = cjson.decode(ARGV[i + 2])
  answers[i] = keep(KEYS[i], told.ops, told.news)
end
return answers
