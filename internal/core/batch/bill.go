package batch

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Bill has the real cost of a request. Its settlement on limits that reserve counts once. Its JSON is the
// request's row in the ledger.
type Bill struct {
	Day   int64  `json:"day"`     // the day of the reservation in UTC, in days since 1970
	ID    string `json:"id"`      // see BillIDs; "" without limits that reserve
	User  string `json:"user_id"` // the name by which it counts; "" for an unknown one
	KeyID int64  `json:"key_id"`  // of the API key; 0 without one
	// Ancestors are the users above User, the nearest first, by the names by which they count.
	Ancestors   []string `json:"ancestors"`
	ServiceTier string   `json:"tier,omitempty"`     // "" for standard
	Answered    string   `json:"answered,omitempty"` // the model that answered; "" for that of Lines[0]
	Lines       []Line   `json:"lines"`              // one for each model, and first that of the request
	Charges     []Charge `json:"charges"`
}

// BillIDs returns a UUID of version 7 for each time, that no other request has. A time is that of a request's
// prices, in microseconds since the Unix epoch: the UUID has its milliseconds, and what is left in 4096ths of
// one.
func BillIDs(times ...int64) []string {
	all := make([]string, len(times))
	id := make([]byte, 16)
	for k, at := range times {
		_, _ = rand.Read(id) // it never fails
		binary.BigEndian.PutUint64(id, uint64(at/1000)<<16|7<<12|uint64(at%1000*4096/1000))
		id[8] = id[8]&0x3f | 0x80
		text := hex.EncodeToString(id)
		all[k] = text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
	}
	return all
}

// PricedAt returns the time in a UUID of BillIDs, or 0 if id is another one.
func PricedAt(id string) int64 {
	const version = 14
	if len(id) <= version || id[version] != '7' {
		return 0
	}
	text := id[:8] + id[9:13] + id[15:18]
	stamp, err := strconv.ParseInt(text, 16, 64)
	if err != nil {
		return 0
	}
	return stamp>>12*1000 + (stamp&0xfff*1000+4095)/4096
}

// Line has the cost of a model.
type Line struct {
	Model string `json:"model,omitempty"` // "" for an unknown one
	// The row of prices: its model, or "" if that is Model, and its time, or "" if it always holds.
	Price      string `json:"price,omitempty"`
	PriceValid string `json:"price_valid,omitempty"`

	// The parts, see option.Parts. The estimates are in Input, CacheWrite and Output.
	Input           int64 `json:"input"`
	CacheRead       int64 `json:"cache_read"`
	CacheWrite      int64 `json:"cache_write"`
	CacheWrite1h    int64 `json:"cache_write_1h,omitempty"`
	Output          int64 `json:"output"`
	AudioInput      int64 `json:"audio_input,omitempty"`
	AudioCacheRead  int64 `json:"audio_cache_read,omitempty"`
	AudioOutput     int64 `json:"audio_output,omitempty"`
	ImageInput      int64 `json:"image_input,omitempty"`
	ImageOutput     int64 `json:"image_output,omitempty"`
	Search          int64 `json:"search,omitempty"`
	EstimatedInput  int64 `json:"estimated_input,omitempty"`
	EstimatedOutput int64 `json:"estimated_output,omitempty"`

	Money json.Number `json:"money,omitempty"` // the exact cost in millionths; "" without a price
	// EstimatedMoney is what the estimates add to Money; "" for 0.
	EstimatedMoney json.Number `json:"estimated_money,omitempty"`
}

// Exact returns a number of thousandths as a number of units: 2500 as 2.5.
func Exact(thousandths int64) json.Number {
	text := strconv.FormatInt(thousandths/1000, 10)
	if rest := thousandths % 1000; rest != 0 {
		text += "." + strconv.FormatInt(1000+rest, 10)[1:]
	}
	return json.Number(text)
}

// Charge has the real cost of a request on one limit.
type Charge struct {
	Limit     *ratelimit.Limit `json:"-"`
	Key       string           `json:"key"` // the stored key
	Subject   string           `json:"-"`   // Hit.Subject
	Unit      string           `json:"unit"`
	RealUnits int64            `json:"-"` // the real cost, for money rounded up: 3 if it is 2.5
	Excess    int64            `json:"-"` // by how many thousandths RealUnits is too much, such as 500
	Charged   int64            `json:"-"` // what the hit was charged, or may hold
	Hold      *ratelimit.Hold  `json:"-"` // the Hold of the hit, which need not hold anything
	Notice    *Notice          `json:"-"` // nil makes none

	// The Decision on a limit that does not reserve: the store corrects Charged to RealUnits.
	DecidedAt int64            `json:"-"`
	Reset     int64            `json:"-"` // in microseconds
	Source    ratelimit.Source `json:"-"`

	// The ledger sets the other fields: the exact cost, where the row is, and the units that Hold holds.
	Exact   json.Number `json:"units"`
	Prefix  string      `json:"prefix"`
	Durable bool        `json:"durable"`
	Held    int64       `json:"-"`
}

// Notice describes a counter that may have reached one of the percentages of its quota that make a notice.
// schema.Notice takes a list of its JSON.
type Notice struct {
	Limit    *ratelimit.Limit `json:"-"`
	Key      string           `json:"key"` // the stored key
	Unit     string           `json:"unit"`
	Quota    int64            `json:"quota"`
	Percents []int64          `json:"percents"`

	// The store sets where the row is.
	Prefix  string `json:"prefix"`
	Durable bool   `json:"durable"`
}
