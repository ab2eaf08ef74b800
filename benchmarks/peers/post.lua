-- wrk script: posts the bodies PREFIX-0 .. PREFIX-(COUNT-1) in turn, then prints one line of JSON.
-- wrk ... -s post.lua URL -- PREFIX COUNT "Header: value" ...

local requests = {}
local last = 0

function init(args)
   local headers = {}
   for i = 3, #args do
      local name, value = args[i]:match("^([^:]+):%s*(.*)$")
      headers[name] = value
   end
   for i = 0, tonumber(args[2]) - 1 do
      local file = assert(io.open(args[1] .. "-" .. i, "rb"))
      requests[i + 1] = wrk.format("POST", nil, headers, file:read("*a"))
      file:close()
   end
end

function request()
   last = last % #requests + 1
   return requests[last]
end

-- `latency` is already corrected for coordinated omission: wrk.py tells what that means.
function done(summary, latency, _)
   local errors = summary.errors
   print(string.format(
      'RESULT {"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "status_errors": %d, "socket_errors": %d}',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), errors.status,
      errors.connect + errors.read + errors.write + errors.timeout))
end
