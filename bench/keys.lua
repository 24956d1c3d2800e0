-- What wrk sends: GET / with one of the keys in a header. Every row runs this
-- script, the plain ones too, so that its cost is the same in all of them. Little
-- is made beforehand: wrk's first thread sends while the second is being set up,
-- and what it sends then would count without the time that it took.
--
-- Arguments: the header, the distribution, how many keys there are, the seed, how
-- many threads there are.

local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

local floor, random = math.floor, math.random
local head, tail, keys, draw, place, step, fresh
local dotted = {} -- ".0" to ".255"

-- Each draws the number of a key, from 0.
local draws = {
   uniform = function() return random(0, keys - 1) end,
   -- The same, from clients that wait a little before their next request.
   calm = function() return random(0, keys - 1) end,
   -- Zipf's law with exponent 1: the key in place k comes with weight ln((k+1)/k).
   zipf = function() return floor(keys ^ random()) - 1 end,
   -- Nine of ten requests are for old keys, and each of the others is for a new key.
   denied = function()
      if random() < 0.9 then
         return random(0, keys - 1)
      end
      fresh = fresh + 1
      return fresh
   end,
   -- One key after the other, from the one that the seed numbers.
   turn = function()
      place = place + step
      return place % keys
   end,
}

function init(args)
   draw, keys = draws[args[2]], tonumber(args[3])
   step = tonumber(args[5])
   place = tonumber(args[4]) + number - step
   fresh = keys + (tonumber(args[4]) * step + number) * 100000 -- others than in the runs with other seeds
   if args[2] == "calm" then
      delay = function() return 2 end -- milliseconds; wrk looks for this name
   end
   math.randomseed((tonumber(args[4]) + 1000) * 16 + number)
   wrk.headers[args[1]] = "@"
   head, tail = wrk.format("GET", "/"):match("^(.*)@(.*)$")
   head = head .. "10"
   for i = 0, 255 do
      dotted[i] = "." .. i
   end
end

-- Keys look like the addresses of clients.
function request()
   local n = draw()
   return head .. dotted[floor(n / 65536)] .. dotted[floor(n / 256) % 256] .. dotted[n % 256] .. tail
end

function done(summary, latency, _)
   local e = summary.errors
   io.write(string.format(
      'RESULT {"requests":%.0f,"microseconds":%.0f,"p50":%.0f,"p99":%.0f,"refused":%.0f,"failed":%.0f}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      e.status, e.connect + e.read + e.write + e.timeout))
end
