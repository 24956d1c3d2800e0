package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// forcePrice is the flag of commands that change prices.
var forcePrice = toggle("force", "allow a price that differs by more than ten times from the one in force")

var importCommand = commandSpec{
	use:   "import FILE",
	short: "Makes the prices of a public list hold from now on",
	long: `FILE is LiteLLM's model_prices_and_context_window.json or the api.json of models.dev; - is standard
input. Without --yes, the command only shows what differs from the prices in force. A price that
differs ends, and a new one begins. Rows without a source, which were made by hand, stay.

In a name, * stands for any text. With --provider, names lose their prefix, as in azure/gpt-4o. A
model that no row can price exactly is left out, with the reason; --ignore leaves out only the field
that is the reason. What the list has no price for in a tier costs there what it does without the
tier, and above a number of tokens what it does below.`,
	example: `prices import model_prices_and_context_window.json --models 'gpt-*,claude-*'
prices import api.json --provider openai --yes
prices import api.json --provider anthropic --ignore 'experimental.*'`,
	flags: []flag{
		repeated("provider", "the providers, as the list names them"),
		repeated("models", "the names of the models, such as gpt-*"),
		repeated("ignore", "fields that none of your requests pays for"),
		toggle("replace", "end rows that were made by hand, too"),
		forcePrice,
		toggle("yes", "make the changes"),
	},
	runGo: importPrices,
}

// leftOut is a model of a list that is no row, and why.
type leftOut struct {
	Model  string `json:"model"`
	Reason string `json:"reason"`
}

func importPrices(c *invocation) error {
	name, file, err := c.readFile()
	if err != nil {
		return fmt.Errorf("reading the prices: %w", err)
	}
	source, models, err := readPriceList(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	models, err = c.chosen(models)
	if err != nil {
		return err
	}
	rows, left := c.priceRows(source, models)
	list, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	c.values["list"], c.values["source"] = string(list), source
	changes, err := c.change("SELECT * FROM rate_limit_import_prices(@list::jsonb, @source, " +
		"@replace::boolean, @force::boolean, NOT @yes::boolean)")
	if err != nil {
		return err
	}
	err = c.show(struct {
		List    string            `json:"list"`
		Models  int               `json:"models"`
		Changes []json.RawMessage `json:"changes"`
		LeftOut []leftOut         `json:"left_out"`
	}{source, len(rows), changes, left})
	switch {
	case err != nil || c.json:
		return err
	case len(changes) == 0:
		return c.printf("\nThe prices in force match the list.\n")
	case !c.boolFlag("yes"):
		return c.printf("\nNothing is changed: this was a dry run, and --yes makes the changes.\n")
	}
	return nil
}

// chosen returns the models that --provider and --models select.
func (c *invocation) chosen(models []listedModel) ([]listedModel, error) {
	provider, names := c.patterns("provider"), c.patterns("models")
	if provider == nil && names == nil {
		return nil, invalid("--provider", "", "given, or --models, such as 'gpt-*'")
	}
	ignored := c.patterns("ignore")
	var chosen []listedModel
	var providers []string
	for _, m := range models {
		providers = append(providers, m.provider)
		if prefix, rest, ok := strings.Cut(m.name, "/"); ok && provider != nil && rest != "" &&
			strings.HasPrefix(m.provider, prefix) {
			m.name = rest
		}
		m.ignored = ignored
		if (provider == nil || provider.MatchString(m.provider)) &&
			(names == nil || names.MatchString(m.name)) {
			chosen = append(chosen, m)
		}
	}
	if chosen == nil {
		slices.Sort(providers)
		return nil, fmt.Errorf("--provider and --models select no model of the list: its providers are %s",
			strings.Join(slices.Compact(providers), ", "))
	}
	return chosen, nil
}

// patterns returns an expression for the patterns of a flag that can be repeated, with commas between them,
// or nil without any.
func (c *invocation) patterns(name string) *regexp.Regexp {
	list := c.flagList(name)
	if len(list) == 0 {
		return nil
	}
	quoted := regexp.QuoteMeta(strings.Join(list, ","))
	return regexp.MustCompile(`(?is)^\s*(?:` +
		strings.NewReplacer(`\*`, ".*", ",", `|`).Replace(quoted) + `)\s*$`)
}

// priceRows returns a row for each model, and the models that have none. Of equal rows, there is one.
func (c *invocation) priceRows(source string, models []listedModel) (rows []priceRow, left []leftOut) {
	rows, left = []priceRow{}, []leftOut{}
	keys, texts := map[string][]string{}, map[string]string{} // by name
	found := map[string]priceRow{}
	for i := range models {
		m := &models[i]
		if source == liteLLM {
			m.readLiteLLM()
		} else {
			m.readModelsDev()
		}
		row := m.row()
		if m.faults != nil {
			slices.Sort(m.faults)
			left = append(left, leftOut{m.key, strings.Join(slices.Compact(m.faults), "; ")})
			continue
		}
		name, text := row["model"].(string), fmt.Sprint(row)
		if texts[name] != text {
			keys[name] = append(keys[name], m.key)
		}
		texts[name], found[name] = text, row
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if same := keys[name]; len(same) > 1 {
			left = append(left, leftOut{name, "has several prices, as " + strings.Join(same, " and ") +
				": select one by --provider or --models"})
			continue
		}
		rows = append(rows, found[name])
	}
	slices.SortFunc(left, func(a, b leftOut) int { return strings.Compare(a.Model, b.Model) })
	return rows, left
}

// usual is a request of a common size.
var usual = option.Parts{option.Input: 10_000, option.Output: 1000, option.Request: 1}

// setPrice changes a row, and prints what a usual request costs by it.
func setPrice(c *invocation) error {
	if err := setter("rate_limit_price")(c); err != nil || c.json {
		return err
	}
	valid := ""
	for _, setting := range c.args[1:] {
		if text, ok := strings.CutPrefix(setting, "valid="); ok {
			valid = text
		}
	}
	rates, err := c.scalar(`SELECT rate_limit_rates(p)
FROM rate_limit_prices p, (SELECT nullif($2, '') AS t) AS i
WHERE p.model = rate_limit_model($1) AND CASE WHEN t IS NULL THEN p.valid @> now()
	ELSE p.valid = `+typeKinds["tstzrange"].sql+` END ORDER BY lower(p.valid) DESC NULLS LAST LIMIT 1`,
		c.args[0], valid)
	var price policy.Price
	if err != nil || rates == nil { // another session has deleted the row
		return err
	}
	if err := json.Unmarshal([]byte(*rates), &price.Rates); err != nil {
		return err
	}
	price.Prepare()
	return c.printf("A request with 10,000 tokens of input and 1,000 of output costs %s.\n",
		decimal.New(policy.Billionths(price.Cost(usual, "")), -9))
}
