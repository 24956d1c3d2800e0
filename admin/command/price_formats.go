package command

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shopspring/decimal"
)

// The lists of prices that can be imported.
const (
	liteLLM   = "LiteLLM"
	modelsDev = "models.dev"
)

var (
	// liteLLMField splits a field of LiteLLM's list into a price of a token, a step, and a tier.
	liteLLMField = regexp.MustCompile(
		`^(.*?)(?:_above_([0-9]{1,9})(k?)_tokens)?(?:_(priority|flex|batches))?$`)
	liteLLMParts = map[string]string{
		"input_cost_per_token":                      "input",
		"cache_read_input_token_cost":               "cache_read",
		"input_cost_per_token_cache_hit":            "cache_read",
		"cache_creation_input_token_cost":           "cache_write",
		"cache_creation_input_token_cost_above_1hr": "cache_write_1h",
		"input_cost_per_audio_token":                "audio_input",
		"cache_read_input_audio_token_cost":         "audio_cache_read",
		"input_cost_per_image_token":                "image_input",
		"output_cost_per_token":                     "output",
		"output_cost_per_reasoning_token":           reasoning,
		"output_cost_per_audio_token":               "audio_output",
		"output_cost_per_image_token":               "image_output",
	}
	// costs matches the names of further fields that can cost something. Units of Databricks are the same
	// prices once more.
	costs = regexp.MustCompile(`(?i)cost|pric|(^|_)fee|charge|surcharge|discount|multiplier|uplift|` +
		`currency|flat_rate|rate_card|per_request|^provider_specific_entry$`)
	sameCosts = regexp.MustCompile(`^(in|out)put_dbu_cost_per_token$`)
)

// readLiteLLM reads the prices of a model of LiteLLM's list, which are for one token.
func (m *listedModel) readLiteLLM() {
	texts := map[string]string{}
	for _, f := range m.fields {
		texts[f.name] = strings.Trim(string(f.value), `"`)
	}
	for _, f := range m.fields {
		switch {
		case m.addToken(f.name, priceLevel{}, f.value) || sameCosts.MatchString(f.name):
		case f.name == "input_cost_per_query" && texts["mode"] == "rerank":
			m.add(f.name, priceLevel{}, "search", f.value, 0)
		case f.name == "input_cost_per_request":
			m.add(f.name, priceLevel{}, "request", f.value, 0)
		case f.name == "search_context_cost_per_query":
			m.addSearch(f, texts["web_search_billing_unit"])
		case f.name == "tiered_pricing":
			m.addRanges(f)
		case f.name == "max_output_tokens":
			m.maxOutput, _ = wholeNumber(f.value)
		case costs.MatchString(f.name):
			m.refuse(f.name, f.value)
		}
	}
	// All that an endpoint of pictures generates is a picture, and embeddings generate nothing.
	base := m.prices[priceLevel{}]
	if base != nil && base["output"] == nil {
		switch texts["mode"] {
		case "image_generation", "image_edit":
			base["output"] = base["image_output"]
		case "embedding", "rerank":
			base["output"] = new(decimal.Decimal)
		}
	}
}

// addToken adds the price of a token, and reports whether a field is one.
func (m *listedModel) addToken(name string, at priceLevel, value json.RawMessage) bool {
	match := liteLLMField.FindStringSubmatch(name)
	part := liteLLMParts[match[1]]
	if part == "" {
		return false
	}
	if match[2] != "" {
		at.step, _ = strconv.ParseInt(match[2], 10, 64)
		if match[3] != "" {
			at.step *= 1000
		}
	}
	at.tier = match[4]
	if at.tier == "batches" {
		at.tier = "batch"
	}
	m.add(name, at, part, value, perToken)
	return true
}

// addSearch adds the price of a search, if it is one for all sizes of what is found. Gemini's is for a
// request with any number of searches, unless the list says otherwise.
func (m *listedModel) addSearch(f field, unit string) {
	prices := objectOf(f.value)
	isOne := len(prices) > 0 && unit != "per_prompt" && (unit != "" || !strings.Contains(m.key, "gemini"))
	for _, price := range prices {
		isOne = isOne && string(price.value) == string(prices[0].value)
	}
	switch {
	case isOne:
		m.add(f.name, priceLevel{}, "search", prices[0].value, 0)
	case !m.ignores(f.name) && hasAmount(f.value):
		m.fail(f.name, f.value, "must be the price of each search")
	}
}

// addRanges adds prices by ranges of input, each with the step that it begins after.
func (m *listedModel) addRanges(f field) {
	if m.ignores(f.name) {
		return
	}
	ranges, isList := listOf(f.value)
	if !isList {
		m.refuse(f.name, f.value)
	}
	last := int64(0)
	for _, prices := range ranges {
		var bounds struct{ Range []json.RawMessage }
		err := json.Unmarshal(prices, &bounds)
		if err != nil || len(bounds.Range) != 2 {
			m.fail(f.name, prices, "must have ranges of tokens")
			return
		}
		from, isFrom := wholeNumber(bounds.Range[0])
		end, isEnd := wholeNumber(bounds.Range[1])
		if !isFrom || !isEnd || end <= from || from != last && (last == 0 || from != last+1) {
			m.fail(f.name, prices, "must have ranges of tokens, each from the end of the one before")
			return
		}
		from, last = last, end
		for _, price := range objectOf(prices) {
			if price.name != "range" && !m.addToken(price.name, priceLevel{step: from}, price.value) {
				m.refuse(f.name+"."+price.name, price.value)
			}
		}
	}
}

var modelsDevParts = map[string]string{
	"input": "input", "output": "output", reasoning: reasoning, "cache_read": "cache_read",
	"cache_write": "cache_write", "input_audio": "audio_input", "output_audio": "audio_output",
}

// readModelsDev reads the prices of a model of models.dev, which are for a million tokens.
func (m *listedModel) readModelsDev() {
	for _, f := range m.fields {
		switch f.name {
		case "cost":
			m.addCosts(f.name, priceLevel{}, f.value)
		case "limit":
			for _, limit := range objectOf(f.value) {
				if limit.name == "output" {
					m.maxOutput, _ = wholeNumber(limit.value)
				}
			}
		case "experimental":
			m.addModes(f)
		default:
			if costs.MatchString(f.name) {
				m.refuse(f.name, f.value)
			}
		}
	}
}

// addCosts adds an object of prices, with its steps.
func (m *listedModel) addCosts(name string, at priceLevel, costs json.RawMessage) {
	fields := objectOf(costs)
	hasTiers := slices.ContainsFunc(fields, func(f field) bool { return f.name == "tiers" })
	for _, f := range fields {
		field := name + "." + f.name
		part := modelsDevParts[f.name]
		switch {
		case part != "":
			m.add(field, at, part, f.value, 0)
		case f.name == "context_over_200k":
			if !hasTiers && !m.ignores(field) { // else the tiers have it, with its true size
				m.addCosts(field, priceLevel{at.tier, 200_000}, f.value)
			}
		case f.name == "tiers":
			m.addContexts(field, at, f.value)
		case f.name != "tier":
			m.refuse(field, f.value)
		}
	}
}

// addContexts adds the steps of prices.
func (m *listedModel) addContexts(name string, at priceLevel, list json.RawMessage) {
	if m.ignores(name) {
		return
	}
	steps, isList := listOf(list)
	if !isList {
		m.refuse(name, list)
	}
	for _, step := range steps {
		var of struct {
			Tier struct {
				Type string
				Size int64
			}
		}
		err := json.Unmarshal(step, &of)
		if err != nil || of.Tier.Size < 1 || of.Tier.Type != "" && of.Tier.Type != "context" {
			m.fail(name, step, "must have a size of the context")
			return
		}
		m.addCosts(name, priceLevel{at.tier, of.Tier.Size}, step)
	}
}

// addModes adds the prices of modes that are tiers of service.
func (m *listedModel) addModes(f field) {
	var experimental struct {
		Modes map[string]struct {
			Cost     json.RawMessage
			Provider struct {
				Body map[string]any
			}
		}
	}
	if json.Unmarshal(f.value, &experimental) != nil {
		m.refuse(f.name, f.value)
	}
	for name, mode := range experimental.Modes {
		name = f.name + "." + name
		tier, isTier := mode.Provider.Body["service_tier"].(string)
		switch {
		case mode.Cost == nil || m.ignores(name):
		case isTier && len(mode.Provider.Body) == 1 && rowTier.MatchString(tier):
			m.addCosts(name, priceLevel{tier: tier}, mode.Cost)
		default:
			m.refuse(name, mode.Cost)
		}
	}
}

// rowTier matches the names of tiers in rows.
var rowTier = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)
