// Package adaptive is the policy "adaptive", the default: it learns from the traffic which blocks will be used
// again, and throws away first what is worth least for the room and time it takes.
//
// How it decides:
//
//   - Each block belongs to a class, by what is known when it is put or read: how often it was used, the turn of
//     the conversation (how many requests extended the chain before), how many blocks the request added, whether
//     the block is full. Keys that were evicted are remembered, so that a conversation that comes back after
//     its blocks are gone is not taken for a new one. Above a block that was used there is never one used less.
//   - For each class and age a hazard is estimated online: the chance that a block not used for so long is used
//     next. From it follows the index of Gittins: the most hits per time that keeping the block can still earn.
//     The victim is the block with the lowest index among the oldest of each class.
//   - A sample of the keys, chosen by hash, is followed whether resident or not. It feeds the estimate and three
//     shadow caches: plain LRU, the index alone, and the policy itself. What the policy gives up before LRU would
//     is bounded by what it has won over LRU so far and a small share of all uses; beyond that only blocks go that
//     LRU would not hold any more. So it falls back to LRU where the past does not tell the future, before much
//     is lost, and keeps doing what pays where it does.
//
// No constant is a property of a traffic: ages are binned by octaves, the curves and factors are learned.
// docs/eviction.md has the figures and the designs that were tried and dropped.
//
// Use it everywhere, unless order must be explainable (lru). Below some hundreds of blocks it has too little to
// learn from and behaves like lru. Config keys: known. Memory: 50 bytes a handle with known = 8, and 2.6 MB.
//
// Ideas: J. C. Gittins, "Bandit processes and dynamic allocation indices", J. R. Statist. Soc. B 41(2), 1979;
// N. Beckmann, H. Chen, A. Cidon, "LHD: improving cache hit rate by maximizing hit density", USENIX NSDI 2018;
// C. A. Waldspurger et al., "Cache modeling and optimization using miniature simulations", USENIX ATC 2017.
package adaptive
