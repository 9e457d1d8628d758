package adaptive

// Config of the policy.
type Config struct {
	Known int `koanf:"known" doc:"evicted keys to remember for each block that fits, 4 bytes each" range:"1..16"`
}

func defaultConfig() Config { return Config{Known: 8} }
