package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// priceLevel selects prices: those of a tier, or "" for none, if all input is more than step tokens.
type priceLevel struct {
	tier string
	step int64
}

// listedModel is a model of a public list of prices.
type listedModel struct {
	key, provider, name string // the key in the list, and the name that requests have
	fields              []field
	ignored             *regexp.Regexp // the names of fields that nobody pays for; nil is none

	// prices has the prices by part, for a million tokens, a search or a request.
	prices    map[priceLevel]map[string]*decimal.Decimal
	maxOutput int64
	faults    []string // what a row cannot say
}

// priceRow is a row of rate_limit_prices with the prices of a list, by column.
type priceRow map[string]any

// reasoning is the part of tokens that rows price as output.
const reasoning = "reasoning"

// perToken is the number of zeros by which a price of a token is less than that of a million.
const perToken = 6

var (
	maxPrice  = decimal.New(1, 9)
	maxTokens = decimal.New(1, 15)
	// rowModel matches the names that a row can have for one model.
	rowModel = regexp.MustCompile(`^[^*[:cntrl:]]{1,199}$`)
)

// readPriceList returns the name of a list and its models.
func readPriceList(file []byte) (source string, models []listedModel, err error) {
	var list json.RawMessage
	if err := json.Unmarshal([]byte(strings.TrimPrefix(string(file), "\ufeff")), &list); err != nil {
		return "", nil, fmt.Errorf("must be a whole JSON document: %w", err)
	}
	for _, top := range objectOf(list) {
		for _, inner := range objectOf(top.value) {
			switch {
			case inner.name == "models" && source != liteLLM:
				for _, model := range objectOf(inner.value) {
					source = modelsDev
					models = append(models, listedModel{key: top.name + "/" + model.name,
						provider: top.name, name: model.name, fields: objectOf(model.value)})
				}
			case inner.name == "litellm_provider" && source != modelsDev && top.name != "sample_spec":
				source = liteLLM
				models = append(models, listedModel{key: top.name, provider: cell(inner.value),
					name: top.name, fields: objectOf(top.value)})
			}
		}
	}
	if source == "" {
		return "", nil, errors.New("must be LiteLLM's model_prices_and_context_window.json or the " +
			"api.json of models.dev")
	}
	return source, models, nil
}

// objectOf returns the fields of a JSON object, or nil for another value.
func objectOf(value json.RawMessage) []field {
	if value[0] != '{' {
		return nil
	}
	return fieldsOf(value)
}

// add sets the price of a part, with more zeros. Null is no price.
func (m *listedModel) add(field string, at priceLevel, part string, value json.RawMessage, zeros int32) {
	if m.ignores(field) || string(value) == "null" {
		return
	}
	price, isNumber := numberOf(value)
	price = price.Shift(zeros)
	if !isNumber || price.IsNegative() || price.GreaterThan(maxPrice) {
		m.fail(field, value, "must be a price from 0 to 1000000000")
		return
	}
	if m.prices == nil {
		m.prices = map[priceLevel]map[string]*decimal.Decimal{}
	}
	if m.prices[at] == nil {
		m.prices[at] = map[string]*decimal.Decimal{}
	}
	if old := m.prices[at][part]; old != nil && !old.Equal(price) {
		m.fail(field, value, "must not differ from another price of "+part)
	}
	m.prices[at][part] = &price
}

// ignores reports whether nobody pays for a field.
func (m *listedModel) ignores(field string) bool {
	return m.ignored != nil && m.ignored.MatchString(field)
}

// fail notes what a row cannot say.
func (m *listedModel) fail(field string, value json.RawMessage, reason string) {
	if value[0] != '{' && value[0] != '[' {
		field += ": " + string(value)
	}
	m.faults = append(m.faults, field+": "+reason)
}

// numberOf returns a number of a list, and whether the value is one, of a size that prices have.
func numberOf(value json.RawMessage) (n decimal.Decimal, isNumber bool) {
	if len(value) > 100 || string(value) == "null" || n.UnmarshalJSON(value) != nil ||
		max(n.Exponent(), -n.Exponent()) > 100 {
		return decimal.Zero, false
	}
	return n, true
}

// wholeNumber returns a number of tokens, which a list can write as 256000.0 or 1e6.
func wholeNumber(value json.RawMessage) (int64, bool) {
	n, isNumber := numberOf(value)
	if !isNumber || !n.IsInteger() || n.IsNegative() || n.GreaterThanOrEqual(maxTokens) {
		return 0, false
	}
	return n.IntPart(), true
}

// refuse notes a field that no row can have, if it costs something.
func (m *listedModel) refuse(field string, value json.RawMessage) {
	if !m.ignores(field) && hasAmount(value) {
		m.fail(field, value, "a row has no such price")
	}
}

// hasAmount reports whether a value has a number other than 0, or a text that is not 0.
func hasAmount(value json.RawMessage) bool {
	if list, isList := listOf(value); isList {
		return slices.ContainsFunc(list, hasAmount)
	}
	for _, f := range objectOf(value) {
		if hasAmount(f.value) {
			return true
		}
	}
	var number decimal.Decimal
	if number.UnmarshalJSON(value) == nil {
		return !number.IsZero()
	}
	return value[0] == '"' && len(value) > len(`""`)
}

// of returns the price of a part. What a list leaves out of a tier or a step costs what it does without the
// tier, else in the step before.
func (m *listedModel) of(at priceLevel, part string) (price *decimal.Decimal) {
	last := priceLevel{step: -1}
	for l, prices := range m.prices {
		if prices[part] != nil && l.step <= at.step && (l.tier == at.tier || l.tier == "") &&
			(l.step > last.step || l.step == last.step && l.tier != "") {
			price, last = prices[part], l
		}
	}
	return price
}

// row returns the row of a model, without one if there are faults.
func (m *listedModel) row() (row priceRow) {
	for at, prices := range m.prices {
		output := m.of(at, "output")
		if price := prices[reasoning]; price != nil && (output == nil || !price.Equal(*output)) {
			m.faults = append(m.faults, "reasoning has a price of its own, which a row cannot have")
		}
		delete(prices, reasoning)
	}
	name := option.ModelName(m.name)
	row = priceRow{"model": name}
	if m.maxOutput > 0 {
		row["max_output"] = m.maxOutput
	}
	if !rowModel.MatchString(name) {
		m.faults = append(m.faults, "the name must be of one model, with at most 199 characters")
	}
	base := m.prices[priceLevel{}]
	for _, part := range []string{"input", "output"} {
		if base[part] == nil {
			m.faults = append(m.faults, part+" has no price")
		}
	}
	for _, at := range m.levels() {
		for _, part := range option.PartNames {
			price := m.of(at, part)
			isBase := at == priceLevel{}
			if price == nil || !isBase && (part == "search" || part == "request") {
				continue
			}
			name := part
			if at.step > 0 {
				name += "@" + strconv.FormatInt(at.step, 10)
			}
			if at.tier != "" {
				name = at.tier + "." + name
			}
			if isBase && slices.Contains([]string{"input", "output", "cache_read", "cache_write"}, part) {
				row[part] = price.String()
				continue
			}
			if !price.Equal(price.Truncate(12)) {
				m.faults = append(m.faults, name+" has more decimals than a row")
			}
			column := "parts"
			if at.tier != "" {
				column = "tiers"
			}
			list, _ := row[column].([]string)
			row[column] = append(list, name+"="+price.String())
		}
	}
	return row
}

// levels returns the levels for which a row needs prices: also a tier in each step, in which the step's
// prices would not hold otherwise.
func (m *listedModel) levels() (levels []priceLevel) {
	tiers, steps := []string{""}, []int64{0}
	for at := range m.prices {
		tiers, steps = append(tiers, at.tier), append(steps, at.step)
	}
	slices.Sort(tiers)
	slices.Sort(steps)
	for _, tier := range slices.Compact(tiers) {
		for _, step := range slices.Compact(slices.Clone(steps)) {
			levels = append(levels, priceLevel{tier, step})
		}
	}
	return levels
}
