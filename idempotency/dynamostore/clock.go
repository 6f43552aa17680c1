package dynamostore

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// drift is by how much a monotonic clock may run wrong, as a part of the time that passed: NTP lets a clock go wrong by
// 500 ppm at most.
const drift = 500e-6

// clock knows the server's time as an interval, from the Date of its responses, as Marzullo's algorithm narrows it: a
// response that was made in the second Date was made after its beginning, and before the moment of sending plus a
// second.
type clock struct {
	skew time.Duration

	mu       sync.Mutex
	sampled  bool
	at       time.Time // when the bounds were worked out; only its monotonic reading is used
	low, top int64     // at that moment, in microseconds since 1970
}

// now returns the interval, false when no response was seen yet.
func (c *clock) now() (low, top int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	low, top = c.on(time.Now())
	return low, top, c.sampled
}

// on carries the bounds on to a moment.
func (c *clock) on(t time.Time) (low, top int64) {
	passed := float64(t.Sub(c.at).Microseconds())
	return c.low + int64(passed*(1-drift)), c.top + int64(passed*(1+drift)) + 1
}

// learn takes a response's Date, sent for at one moment and received at another.
func (c *clock) learn(date, sent, received time.Time) {
	low := date.Add(-c.skew).UnixMicro()
	top := date.Add(time.Second+c.skew).UnixMicro() + received.Sub(sent).Microseconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	oldLow, oldTop := c.on(received)
	switch {
	case !c.sampled:
	case low > oldTop || top < oldLow:
		// Two servers, or one before and after its clock was set, or the machine slept: nothing but both together is
		// certain.
		low, top = min(low, oldLow), max(top, oldTop)
	default:
		low, top = max(low, oldLow), min(top, oldTop)
	}
	c.sampled, c.at, c.low, c.top = true, received, low, top
}

// watch makes every attempt of a call tell the clock its response's Date.
func (c *clock) watch(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("effectonceClock", func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (middleware.DeserializeOutput, middleware.Metadata, error) {
			sent := time.Now()
			out, md, err := next.HandleDeserialize(ctx, in)
			received := time.Now()
			// Without a request id the answer is not DynamoDB's but of something between.
			if res, ok := out.RawResponse.(*smithyhttp.Response); ok && res != nil &&
				res.Header.Get("X-Amzn-Requestid") != "" {
				if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
					c.learn(date, sent, received)
				}
			}
			return out, md, err
		}), middleware.After)
	})
}
